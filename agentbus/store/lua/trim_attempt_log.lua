#!lua flags=allow-oom
-- Trims the log of attempts up to where an archive has it, as far as no other archive needs it.
-- KEYS: the log, what readers need of it
-- ARGV: the lowest id that this archive does not have
-- Returns: how many entries were removed
--@include ids
--@include lowest_of_readers
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
return redis.call('XTRIM', KEYS[1], 'MINID', '=', lowest_of_readers(KEYS[2], ARGV[1]))
