"""When queries are due: what is pending, how their triggers apply, when a run must start.

Law: nothing here decides what is done or writes anything; being wrong here costs time, never an
answer. Out of scope: what a trigger may say (`workload.sections`), running
(`service.schedule.daemon`).
"""
