"""Who makes the batches of a Loader; used by samebits.data alone, whose page says what is promised.

loader                          the Loader, by one of the ways below
same_data, clock                whether all ranks read one data set; samples/s
choose                          which of the ways below, and with how many threads or workers
ring, slots, resident           a thread fills reused buffers; a set that lies on the device
workers, open_workers, worker   processes for data sets with Python work for each sample, or a `collate` of their own
samples, side_stream, waits     a list of samples -> a batch; copies beside the step; time waited
"""
