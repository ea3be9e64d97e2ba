#!lua flags=allow-oom
-- Acknowledges finished tasks that this consumer still holds, and takes new ones.
-- KEYS: stats, once slot (not used without a token), awaited, recorded outcomes, cancelled, then
--       the streams in reading order; with an attempt log, last its key
-- ARGV: group, consumer, token ('' if nothing is acknowledged), maximum number of tasks to take,
--       number of these from the last non-empty stream, the handlers' milliseconds, the suffix of
--       task ids for each stream, as lines, then for each stream the number of its ids, then for
--       each the number of entries that the consumer holds if none was taken from it ('' if
--       unknown), then all ids, ascending within a stream; with an attempt log, last its words
-- Returns: {ids that this consumer no longer holds, {{index of the stream, entries}, …}, 1 if the
--          group is missing from a stream, 1 if finished tasks have dependents, number of consumers
--          with pending entries in one of the streams of finished tasks}
--@include held
--@include log_attempts
local call, group, consumer, left = redis.call, ARGV[1], ARGV[2], tonumber(ARGV[4])
local streams = select(2, string.gsub(ARGV[7], '[^\n]+', ''))
local stale, taken, missing, holders = {}, {}, 0, 0
-- Most queues have no dependencies; they need no other check.
local awaited = ARGV[3] ~= '' and call('EXISTS', KEYS[3]) == 1
local function suffix(i)
  local suffixes = {}
  for line in string.gmatch(ARGV[7], '[^\n]+') do suffixes[#suffixes + 1] = line end
  return suffixes[i]
end
-- Records the outcome of done tasks that have dependents.
local function pass_on(i, ids)
  local tail = suffix(i) .. '\n' .. group
  for at = 1, #ids, 1000 do
    local fields = {}
    for n = at, math.min(at + 999, #ids) do fields[#fields + 1] = ids[n] .. tail end
    local marks = redis.pcall('ZMSCORE', KEYS[3], unpack(fields))
    for n, field in ipairs(fields) do
      if marks[n] then redis.pcall('HSETNX', KEYS[4], field, '+') end
    end
  end
end
if ARGV[3] ~= '' then
  local token = ARGV[3] .. ' '
  local kept = call('GET', KEYS[2])
  if kept and string.sub(kept, 1, #token) == token then
    for id in string.gmatch(string.sub(kept, #token + 1), '%S+') do stale[#stale + 1] = id end
  else
    local first, without = 8 + 2 * streams, {}
    local from, done = first, 0
    for i = 1, streams do
      local number = tonumber(ARGV[7 + i])
      if number > 0 then
        local stream, to = KEYS[i + 5], from + number - 1
        local mine, ids, pending = 0, {}, redis.pcall('XPENDING', stream, group)
        -- Only a consumer's own reads add pending entries to it. If it knows the result of every
        -- read, and its count matches, it holds all ids: check no ids one by one.
        local all = false
        for n, of in ipairs(pending[4] or {}) do
          holders = math.max(holders, n)
          all = all or of[1] == consumer and tostring(of[2]) == ARGV[7 + streams + i]
        end
        if all then
          for at = from, to, 5000 do
            mine = mine + call('XACK', stream, group, unpack(ARGV, at, math.min(at + 4999, to)))
          end
          if awaited then
            for at = from, to do ids[#ids + 1] = ARGV[at] end
          end
        elseif not pending.err then
          local mine_yet = held(stream, group, consumer, ARGV[from], ARGV[to])
          for at = from, to do
            if mine_yet[ARGV[at]] then
              ids[#ids + 1] = ARGV[at]
            else
              stale[#stale + 1], without[#without + 1] = ARGV[at], at - first
            end
          end
          for at = 1, #ids, 5000 do
            mine = mine + call('XACK', stream, group, unpack(ids, at, math.min(at + 4999, #ids)))
          end
        else
          missing = 1
          for at = from, to do
            stale[#stale + 1], without[#without + 1] = ARGV[at], at - first
          end
        end
        if awaited then pass_on(i, ids) end
        done, from = done + mine, to + 1
      end
    end
    if done > 0 then
      redis.pcall('HINCRBY', KEYS[1], 'processed', done)
      redis.pcall('HINCRBY', KEYS[1], 'busy_ms', ARGV[6])
    end
    if #stale > 0 then redis.pcall('HINCRBY', KEYS[1], 'stale', #stale) end
    if #KEYS > 5 + streams then log_attempts(from, from - first, without) end
    -- Use the expiry of lib/once.lua.
    call('SET', KEYS[2], token .. table.concat(stale, ' '), 'EX', 10800)
  end
end
local cancelled = left > 0 and call('EXISTS', KEYS[5]) == 1
-- Acknowledges the cancelled ones among entries, and returns the rest.
local function sound(i, entries)
  local tail, found = suffix(i), {}
  for _, entry in ipairs(entries) do
    if type(redis.pcall('HGET', KEYS[5], entry[1] .. tail)) == 'string' then
      call('XACK', KEYS[i + 5], group, entry[1])
    else
      found[#found + 1] = entry
    end
  end
  return found
end
local function take(i, most)
  if most <= 0 or call('EXISTS', KEYS[i + 5]) == 0 then return 0 end
  -- Tasks may follow behind cancelled ones, of which a queue holds 10,000 by default: skipping them
  -- takes a tenth of a second, once.
  for _ = 1, cancelled and 10000 or 1 do
    local reply = redis.pcall('XREADGROUP', 'GROUP', group, consumer, 'COUNT', most, 'STREAMS', KEYS[i + 5], '>')
    if not reply then return 0 end
    if reply.err then
      missing = 1
      return 0
    end
    local entries = reply[1][2]
    if cancelled then entries = sound(i, entries) end
    if #entries > 0 then
      taken[#taken + 1] = { i, entries }
      left = left - #entries
      return #entries
    end
  end
  return 0
end
local low = math.min(tonumber(ARGV[5]), left)
for i = streams, 1, -1 do
  if low > 0 then low = low - take(i, low) end
end
for i = 1, streams do take(i, left) end
return { stale, taken, missing, awaited and call('EXISTS', KEYS[4]) or 0, holders }
