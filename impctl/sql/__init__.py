"""SQL text to plans. Unsupported text is refused with its place, never read as something
similar."""
