"""WITH entries that read themselves."""
