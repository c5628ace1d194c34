"""Which table rows an answer's row is derived from, by running the query once more on exactly the
given rows; nothing is kept."""
