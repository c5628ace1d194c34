"""Relations written into the text itself."""
