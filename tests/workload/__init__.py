"""Tests of the workload file; a package, since other folders have test files of the same name."""
