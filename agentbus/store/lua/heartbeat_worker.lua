#!lua flags=allow-oom
-- Records a worker's heartbeat, and returns the orders for it.
-- KEYS: beats, the worker's record, paused
-- ARGV: worker, number of this beat, state, seconds for which a silent worker stays registered, how many fields name its
--       orders, those fields, then fields and values of its record
-- Returns: {{order in force as JSON or '', the queue's limits as JSON or '', the server's time in ms}, 1 if it must stop, at its first beat the workers that were silent that long,
--          the places of its cancelled tasks, a line each}
--@include replace
--@include heartbeat_worker
return heartbeat_worker(ARGV[1], ARGV[2], ARGV[3], 4)
