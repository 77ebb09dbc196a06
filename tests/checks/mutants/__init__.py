"""Planted faults ("mutants"), of two kinds.

**In our own code: does our test suite notice plausible bugs?** A fault is data: one text
replacement in one file, with a sentence that says which real bug it imitates. `python -m
tests.checks.mutants` makes a copy of the committed tree, plants one fault at a time, and runs tests
on the copy until one fails. A fault that no test notices is a gap in the suite and needs a new
test. A fault that changes no behavior proves nothing and has to be replaced.

    faults.py            what a fault is, and the check that its text still stands in the tree
    faults_emu.py        faults in `emu`
    faults_attention.py  faults in `attention`
    faults_files.py      faults in what a call means and what a file says
    faults_summaries.py  faults in what summaries say of numbers that are not finite
    faults_check.py and its like for identify, kernels, sweep, trace: faults in what a verb says
    catalogue.py         all of them
    copies.py            the copy of the tree, and the environment in which its tests run
    running.py           tests on a copy: which one failed first, and with what message
    table.py             results as a file of JSON and as a table in Markdown
    __main__.py          the command

To add a fault, put a `Fault` into the module of its part, with the nearest test files first, and
run `python -m tests.checks.mutants --only NAME`.

**In a user's kernel: does `roundscope check` notice them?** `faults_kernel.py` plants faults in a
good attention kernel, `reference.py`.
"""
