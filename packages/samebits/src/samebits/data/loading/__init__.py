"""The Loader and its ways to make batches. Only samebits.data uses this package; its docstring lists the guarantees.

loader         the Loader, which uses one of the sources below
choose         which source, and how many threads or workers
ring           source: threads gather rows into reused buffers
resident       source: a data set that is completely on the device (or in RAM)
workers        source: processes for data sets with Python code per sample, or with their own `collate`
worker         the code of a worker process
open_workers   the number of workers
slots          reused buffers
samples        a data set's samples and the batches made of them
side_stream    copies to the GPU in the background
clock          samples/s and the share of time spent waiting
waits          time spent waiting for data
same_data      whether all ranks read the same data set
"""
