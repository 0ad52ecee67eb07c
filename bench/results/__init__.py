"""What a benchmark found, and what follows from it.

- ``runs``: the results of a run, and their form as JSON
- ``figures``: single figures of a measurement, and which measurements can be used
- ``statistics``: medians with confidence, and indistinguishable settings
- ``advice``: what to set, in words and as a line to paste
- ``wording``: figures and lists in words, the same everywhere
- ``tables``: the results for a terminal of 80 columns, and as CSV
- ``compare``: two runs, with a verdict for each line
- ``report``: the same as one HTML file with pictures
"""
