#!lua flags=allow-oom
-- Trims the attempt log up to the end of an archive, unless another archive still needs the entries.
-- KEYS: the log, the positions of its readers
-- ARGV: the lowest id that this archive lacks
-- Returns: number of removed entries
--@include ids
--@include lowest_of_readers
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
return redis.call('XTRIM', KEYS[1], 'MINID', '=', lowest_of_readers(KEYS[2], ARGV[1]))
