#!lua flags=allow-oom
-- Notes how a task ended for which others wait, where nobody did; or forgets a note that concerns nobody any longer.
-- KEYS: notes of what is settled, awaited
-- ARGV: task's id, group, how it ended ('' to forget it), how the members begin that wait for it
-- Returns: 1 if others wait for it, else 0
--@include settled
--@include over
if ARGV[3] ~= '' then return settled(KEYS[2], KEYS[1], ARGV[1], ARGV[2], ARGV[3]) and 1 or 0 end
over(KEYS[1], KEYS[2], ARGV[1] .. '\n' .. ARGV[2], ARGV[4])
return 0
