"""Example data, timings, records and reports. It knows nothing of queries, tables or sketches."""
