"""What would have been: commits of the past replayed in virtual time, setting by setting.

Law: no row of a table is read and nothing is written; what decides is what decides in earnest, the
functions of `app.maintaining`. Out of scope: asking for it (`app.simulate`).
"""
