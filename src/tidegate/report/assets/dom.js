// Elements built from values. Text is always a text node: nothing from a run is ever parsed as markup.

/** element("p", { class: "hint", onclick }, "text", child, ...): attributes by name, then children. */
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (typeof value === "function") made[name] = value;
    else if (value !== null && value !== undefined) made.setAttribute(name, String(value));
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== "") made.append(child instanceof Node ? child : String(child));
  }
  return made;
}

function byId(id) { return document.getElementById(id); }

/** Replace everything in an element. */
function fill(home, ...children) { home.replaceChildren(...children.flat().filter((child) => child !== null && child !== "")); }

/** A table of names and values. */
function pairs(rows) {
  return element("table", null, rows.map(([name, value]) => element("tr", null, element("td", null, name), element("td", null, value))));
}

/** The class that gives an element the colour of a kind; side tables are grey. */
function kindClass(kind) { return ["data", "late", "dropped", "error"].includes(kind) ? `kind-${kind}` : "kind-set"; }
