#!lua
-- Keeps a task until its dependencies are done; if they already are, makes it ready at once.
-- KEYS: after, its bodies, queues, stats, once slot, stream, order, metrics, readers, recorded outcomes, delayed,
--       bodies of delayed tasks, bell, the stream of retries, the counter of ids, then for each dependency its stream, result, delayed, its counter,
--       awaited, after, cancelled, stream of retries, where moved tasks are, result for routers; and last seen (only with a dedup key)
-- ARGV: 1 not to count the refusal if tasks stay behind an unfinished one, queue, bound, dedup window in seconds,
--       task id's suffix, token, delay in ms ('' for none), due at in ms ('' for no time), priority, ordering key or
--       '', name of its dead letters, seconds that its outcome is recorded, number of dependencies, then for each of
--       these its id, its entry ('' if unknown), its number if it was delayed, the group, for how many ms an outcome
--       is recorded; then the task's fields and values
-- Returns: {'accepted', task id}, {'seen', task id}, {'full', number, group, id} as publish does; or for a dependency, by number:
--          {'buried' or 'cancelled', number, why}, {'absent', number}, or {'unclear', number} where its entry must be searched for
--@include json
--@include once
--@include ids
--@include stream
--@include lowest_of_readers
--@include undelivered
--@include lowest_needed
--@include count_refused
--@include order
--@include moved_entry
--@include task_state
--@include make_ready
--@include new_ids
--@include has_group
local before = already(KEYS[5], ARGV[6])
if before then return before end
local call, number = redis.call, tonumber(ARGV[13])
local seen = KEYS[16 + 10 * number]
if seen then
  local first = call('GET', seen)
  if first then return { 'seen', first } end
end
local time = call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

-- Returns '+' if the dependency is done, '' if it is unfinished, or else the reply of this script.
local function dependency_state(n)
  local key, at = 6 + 10 * n, 9 + 5 * n
  local id, entry, group = ARGV[at], ARGV[at + 1], ARGV[at + 3]
  -- Until the dependents are released, the outcome may be recorded only here.
  local note = call('HGET', KEYS[10], id .. '\n' .. group) or call('HGET', KEYS[10], id .. '\n')
  if note then return note == '+' and '+' or { string.sub(note, 1, 1) == '-' and 'cancelled' or 'buried', n, string.sub(note, 2) } end
  if call('ZSCORE', KEYS[key + 5], id) then return '' end
  local found = task_state(KEYS[key], KEYS[key + 1], KEYS[key + 2], KEYS[key + 3], KEYS[key + 6], KEYS[key + 7], KEYS[key + 8], KEYS[3],
    entry, id, ARGV[at + 2], group)
  if found[1] == 'kept' then
    local letter, why = string.match(found[2], '^!(%S*) ?(.*)$')
    return why and { letter == '' and 'cancelled' or 'buried', n, why } or '+'
  elseif found[1] == 'cancelled' then
    return { 'cancelled', n, 'it was cancelled by ' .. (string.match(found[2], '^(.*) @ ') or found[2]) }
  elseif found[1] == 'done' then
    -- Outcomes of dead tasks are recorded only for some time; after that, the outcome is unknown.
    local since = now - tonumber(string.match(entry, '^%d+'))
    return since <= tonumber(ARGV[at + 4]) and '+' or { 'absent', n }
  elseif found[1] == 'waiting' then
    local unrouted = string.match(call('GET', KEYS[key + 9]) or '', '^!%S+ (.*)$')
    if unrouted and not has_group(KEYS[key], group) then return { 'buried', n, unrouted } end
    if entry ~= '' or call('ZSCORE', KEYS[key + 2], id) then return '' end
    return { 'unclear', n }
  end
  return { 'absent', n }
end

local open = {}
for n = 1, number do
  local found = dependency_state(n)
  if type(found) == 'table' then return found end
  if found == '' then open[#open + 1] = n end
end
local kept = call('ZCARD', KEYS[1]) + call('ZCARD', KEYS[11])
local fits, undone, blocking, oldest = room(KEYS[6], tonumber(ARGV[3]) - kept, 1, KEYS[9], KEYS[14])
if not fits then
  if ARGV[1] == '0' or oldest == '' then count_refused(KEYS[8], KEYS[4], 100000, ARGV[2], 1) end
  return { 'full', kept + undone, blocking, oldest }
end
local due = ARGV[8]
if ARGV[7] ~= '' then due = string.format('%d', now + tonumber(ARGV[7])) end
local id = new_ids(KEYS[15], ARGV[5], 1, { KEYS[2], KEYS[12] })[1]
local task = { ARGV[9], ARGV[10], due, ARGV[11], ARGV[12] }
for i = 14 + 5 * number, #ARGV do task[#task + 1] = ARGV[i] end
redis.pcall('HINCRBY', KEYS[4], 'scheduled', 1)
call('ZADD', KEYS[3], 'NX', time[1] .. '000', ARGV[2])
if #open == 0 then
  make_ready(id, task, { KEYS[6], KEYS[7], KEYS[11], KEYS[12], KEYS[13] }, now)
else
  call('HSETNX', KEYS[2], id, cjson.encode(task))
  call('ZADD', KEYS[1], #open, id)
  local waits = {}
  for _, n in ipairs(open) do waits[#waits + 1] = ARGV[9 + 5 * n] .. '\n' .. ARGV[12 + 5 * n] end
  call('HSETNX', KEYS[2], id .. '\n', cjson.encode(waits))
  -- Put the length of the number first, so that dependents sort by their numbers.
  local last = string.format('\n%02d', #string.match(id, '%d+')) .. id
  for _, n in ipairs(open) do
    local mark = ARGV[9 + 5 * n] .. '\n' .. ARGV[12 + 5 * n]
    call('ZADD', KEYS[10 + 10 * n], 0, mark, 0, mark .. last)
  end
end
if seen then call('SET', seen, id, 'EX', ARGV[4]) end
return keep(KEYS[5], ARGV[6], { 'accepted', id })
