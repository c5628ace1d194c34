"""Query plans as frozen nodes, and functions over them; no data, no state, no Spark."""
