"""The tables of Reimers and Gurevych 2019 with our results and the paper's: `python -m benchmarks.tables --help`.

profiles.py   what a machine can afford: seeds, epochs, number formats
lab.py        trains models and measures them by es-sbert's own commands; every result is kept and not made twice
models.py     how each model of the tables is made
mlm.py        a small encoder without sentence tuning, which is at hand nowhere
paper.py      the paper's figures
sts.py …      one module a table
document.py   puts the tables into docs/results.md
"""
