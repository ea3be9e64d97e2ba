-- clock(): the server's time in ms.
local function clock()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
-- lines(path, agent, why, until, since, token, auto, sub): a lease as a reply has it: these, a line each.
local function lines(...)
  local found, words = {}, { ... }
  for i = 1, 8 do
    local word = words[i]
    -- Other programs may have stored other characters, and numbers.
    word = type(word) == 'number' and string.format('%d', word) or type(word) == 'string' and word or ''
    found[i] = string.gsub(word, '%c', ' ')
  end
  return table.concat(found, '\n')
end
-- leases(key, now): the leases in force, each with its stored field and values, its `token` as digits, and its `text` for a
-- reply; and the fields of those that have ended, or that another program wrote in another form.
local function leases(key, now)
  local flat, found, over = redis.call('HGETALL', key), {}, {}
  for i = 1, #flat, 2 do
    local path, agent = string.match(flat[i], '^(.+)\n(.+)$')
    local read, lease = pcall(cjson.decode, flat[i + 1])
    local sound = path and read and type(lease) == 'table' and type(lease['until']) == 'number'
    if sound and lease['until'] > now then
      -- Lua's numbers hold 53 bits of the token's 64.
      local token = string.match(flat[i + 1], '"token"%s*:%s*(%d+)') or '0'
      found[#found + 1] = { field = flat[i], path = path, agent = agent, lease = lease, token = token,
        pattern = pattern(path), text = lines(path, agent, lease['why'], lease['until'], lease['since'], token,
          lease['auto'] == true and '1' or '', lease['sub']) }
    else
      over[#over + 1] = flat[i]
    end
  end
  return found, over
end
-- overlapping(found, paths, which): pairs of a path's number and a lease that overlaps it, of those leases for which
-- `which` is true.
local function overlapping(found, paths, which)
  local met = {}
  for n, path in ipairs(paths) do
    local wanted = pattern(path)
    for _, one in ipairs(found) do
      if which(one) and overlap(wanted, one.pattern) then met[#met + 1] = { n, one } end
    end
  end
  return met
end
-- delete(key, fields): deletes any number of fields of a hash.
local function delete(key, fields)
  for i = 1, #fields, 1000 do
    redis.call('HDEL', key, unpack(fields, i, math.min(#fields, i + 999)))
  end
end
-- ring(bell): wakes who waits for leases to end. A corrupted bell must not keep a lease.
local function ring(bell)
  redis.pcall('XADD', bell, 'MAXLEN', 1, '*', 'ended', 1)
end
