"""What Spark needs on this machine: Java, a Python for its workers, jars."""
