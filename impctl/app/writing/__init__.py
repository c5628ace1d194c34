"""An answer as text and files: CSV, JSON, Markdown, Parquet.

What lives here: Arrow columns made into texts, and these into lines or whole files. Law: a value is
never rounded, cut or mistaken for NULL on the way; what a format cannot say is an error or has a
documented text (docs/output-formats.md). Out of scope: the terminal (`cli.output`).
"""
