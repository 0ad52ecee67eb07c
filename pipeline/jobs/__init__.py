"""Jobs on whole stores: load, export, restore, copy and diff.

- ``command``: the options of ``batchkeeper spark``, without pyspark
- ``running``: a job from its arguments to its exit code
- ``spark_session``: starts Spark quietly, and shows its errors in one line
- ``places``: whether a name stands for a store or a folder
- ``inputs``: files to rows, each found again by its line
- ``load``: rows of files into a store
- ``writing``: a job's rows into a store
- ``export``: export and restore
- ``parts``: what the tasks of an export do
- ``manifest``: what an export holds, and whether it still does
- ``folder``: files here, or where pyarrow reaches
- ``copies``: a copy, range by range
- ``state``: what is done of a copy
- ``sides``: the two sides of a comparison
- ``diff``: compares them
- ``progress``: how far a job is
- ``summary``: what a job says at its end
"""
