#!lua flags=no-writes
-- Returns the state of a task for a group.
-- KEYS: stream, result, delayed, the counter of ids, cancelled, the stream of retries, where moved tasks are, queues
-- ARGV: entry's id ('' if the task was delayed), the task's id, its number if it was delayed, group ('' for
--       'default', or the only one there is)
-- Returns: {'kept', the stored result}, {'done'}, {'waiting'}, {'absent'}, {'cancelled', by whom and when}, {'group', the only
--          one there is}, or {'groups', their names}
--@include ids
--@include stream
--@include moved_entry
--@include task_state
return task_state(KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], ARGV[1], ARGV[2], ARGV[3], ARGV[4])
