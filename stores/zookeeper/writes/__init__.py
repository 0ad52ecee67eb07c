"""Writes: a call in one multi, with an outcome for each operation.

- ``writer``: sends a call in rounds, until all of it is decided
- ``batches``: the writes of one call, and what is known about them
- ``guesses``: whether unseen paths are taken to have nodes
- ``forms``: what each condition with each effect becomes in a multi
- ``plan``: distributes writes over multis
- ``transactions``: the ops of transactions, and which of their parts does not hold
- ``groups``: multis in the making, and what they change
- ``settling``: sends multis until the outcome of each is known
- ``outcomes``: the answers of the requests in a multi that was applied
- ``sequences``: the names of sequential nodes whose answer was lost
"""
