"""How time and memory grow with the number of documents, and what 100 million or a billion of them need.

laws.py       exponents, what they should be, and which cells would take too long
cells.py      what is measured: one part with one number of documents
isolation.py  runs a cell in its own process, for a limited time
plan.py       machines, hours, disk and memory from the measured costs
results.py    the runs that are kept by kind of processor, and their tables
"""
