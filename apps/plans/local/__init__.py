"""The planner without a model: a request and a tenant's tools in, a proposal out. Read its files in this order.

tokens      cuts the text into words, and values that their form tells: mails, ids, paths.
dates       reads dates, times and periods.
values      adds numbers, units and names of languages and the like.
params      says what values each param of a tool takes.
index       finds the tools that share words with a part.
parts       finds where a request may be cut, and what each part says.
options     lists the values that a part may give a param, with the features of each.
matching    gives a tool's params values of a part, the best combinations first.
chaining    takes values from earlier parts and from lookups.
proposing   tries each cut, keeps the best plan, and judges how likely it is right.
history     tells which tools past requests of such words used.
words       reads words.txt: general English, and the weights that `tests/plans/learning.py` learned.
"""
