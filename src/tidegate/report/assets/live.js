// A page that is served while its run goes on: it asks for new commits and takes them up in place.
// When the run ends, or its server is gone, the page stays as it is and says so.

const EVERY = 2000; // ms between two questions; a state is a few bytes, data is fetched only when it is new

function follow(page) {
  let commits = page.run.live.commits;
  let timer = 0;
  const status = (text, ended) => { byId("live").textContent = text; byId("live").className = ended ? "ended" : ""; };
  const stop = (text) => { clearInterval(timer); status(text, true); };
  const ask = async () => {
    let state;
    try {
      const answer = await fetch("state");
      if (!answer.ok) return stop(await answer.text());
      state = await answer.json();
      if (state.commits > commits) {
        const data = await (await fetch("data")).json();
        commits = data.facts.live.commits;
        page.replace(await load(data));
      }
    } catch {
      return stop(`The run is over or its server is gone; shown up to commit ${whole(commits)}.`);
    }
    if (state.ended && state.commits <= commits) return stop(`The run has ended after ${counted(commits, "commit")}.`);
    return status(`live, ${counted(commits, "commit")}`);
  };
  status(`live, ${counted(commits, "commit")}`);
  timer = setInterval(ask, EVERY);
}
