#!lua flags=no-writes
-- Tells what became of a task for a group.
-- KEYS: stream, result, delayed, stats
-- ARGV: entry's id ('' if the task was delayed), the task's id, its number if it was delayed, group ('' for
--       'default', or the only one there is)
-- Returns: {'kept', what is kept under the result's key}, {'done'}, {'waiting'}, {'absent'}, {'group', the only
--          one there is}, or {'groups', their names}
--@include ids
--@include stream
local kept = redis.call('GET', KEYS[2])
if kept then return { 'kept', kept } end
local last = stream(KEYS[1])['last-generated-id']
if ARGV[1] == '' then
  if redis.call('ZSCORE', KEYS[3], ARGV[2]) then return { 'waiting' } end
  local made = redis.call('HGET', KEYS[4], 'scheduled') or '0'
  if longer(ARGV[3], made) then return { 'absent' } end
elseif newer(ARGV[1], last) then
  return { 'absent' }
end
if redis.call('EXISTS', KEYS[1]) == 0 then return { 'waiting' } end
local wanted = ARGV[4] == '' and 'default' or ARGV[4]
local names, reached = {}, nil
for i, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local info = {}
  for j = 1, #group, 2 do info[group[j]] = group[j + 1] end
  names[i] = info['name']
  if info['name'] == wanted then reached = info['last-delivered-id'] end
end
if not reached then
  if ARGV[4] ~= '' or #names == 0 then return { 'waiting' } end
  if #names == 1 then return { 'group', names[1] } end
  return { 'groups', unpack(names, 1, math.min(#names, 100)) }
end
-- One that was delayed got an id of its own when it fell due, which nobody kept.
if ARGV[1] == '' then return { 'waiting' } end
local there = #redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1]) == 1
if newer(ARGV[1], reached) then return { there and 'waiting' or 'absent' } end
if #redis.call('XPENDING', KEYS[1], wanted, ARGV[1], ARGV[1], 1) == 1 then return { 'waiting' } end
local oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
if not there and oldest and newer(ARGV[1], oldest[1]) then return { 'absent' } end
return { 'done' }
