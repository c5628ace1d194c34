"""What a run works on: settings, tables pinned, the store, Spark, progress.

Law: opened as needed and closed together; nothing here knows a query's plan.
"""
