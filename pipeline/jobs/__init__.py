"""Jobs on whole stores: load, export, restore, copy and diff.

- ``command``: the options of ``batchkeeper spark``, without pyspark
- ``running``: a job from its arguments to its exit code
- ``spark_session``: starts Spark quietly, and shows its errors in one line
- ``places``: whether a name stands for a store or a folder
- ``inputs``: reads files into rows, each with its line
- ``load``: writes the rows of files to a store
- ``writing``: writes a job's rows to a store
- ``export``: export and restore
- ``parts``: what the tasks of an export do
- ``manifest``: the manifest of an export, and checking its files
- ``folder``: files on this machine, or wherever pyarrow can reach
- ``copies``: a copy, range by range
- ``state``: the progress of a copy, for resuming it
- ``sides``: the two sides of a comparison
- ``diff``: compares them
- ``progress``: the progress of a job
- ``summary``: the summary at the end of a job
"""
