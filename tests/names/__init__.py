"""Tests of names of tables, from the file to Spark; a package, as other rooms have such files."""
