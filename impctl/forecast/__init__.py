"""What comes next, by what came before: numbers in, a number with an interval or a chance out.

Law: knows no table and no query; too little to go by is unknown, never a guess.
"""
