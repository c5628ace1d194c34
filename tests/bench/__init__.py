"""Tests of measuring; a package, since other rooms have test files of the same name."""
