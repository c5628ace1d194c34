"""Tests of the workload file; a package, since other rooms have test files of the same name."""
