#!lua
-- Appends tasks with their envelopes, all or none of them.
-- KEYS: stream, queues, stats, once slot, order, metrics, readers, the retry stream, then the seen keys of those with
--       a dedup key
-- ARGV: 1 to answer 'full' at once if tasks stay behind an unfinished one, queue, bound, 'refuse' or 'trim', dedup
--       window in seconds, task id's suffix, token, number of tasks, then for each number of words that follow at the
--       end, which of the seen keys is its own (0: none), its ordering key ('': none), its fields and values
-- Returns: {'tasks', id, …}, whole task ids for those seen before; or {'full', how many are not done, the
--          group that blocks ('' if none), ''}, or the number of all and the id behind which they stay
--@include json
--@include once
--@include ids
--@include lowest_of_readers
--@include undelivered
--@include lowest_needed
--@include order
--@include count_refused
--@include publish
local before = already(KEYS[4], ARGV[7])
if before then return before end
local reply = publish(0, 0)
if reply[1] == 'full' then return reply end
return keep(KEYS[4], ARGV[7], reply)
