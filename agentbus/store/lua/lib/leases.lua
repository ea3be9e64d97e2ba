-- clock(): returns the server's time in ms.
local function clock()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
-- whole(number): returns a number, which another program may have written, in a form that can be
-- printed.
local function whole(number)
  return math.floor(math.max(0, math.min(number, 9e15)))
end
-- The caller's repository, '' where it has none: patterns of two repositories never overlap.
local here = ''
-- together(one): returns whether a lease may concern the caller's repository.
local function together(one)
  return one.repository == here or one.repository == '' or here == ''
end
-- lines(path, agent, why, until, since, token, auto, sub, process, repository): returns a lease as in
-- a reply: these values, one per line, without the caller's repository.
local function lines(...)
  local found, words = {}, { ... }
  for i = 1, 10 do
    local word = words[i]
    if i == 10 and word == here then word = '' end
    -- Other programs may have stored other characters, or numbers.
    word = type(word) == 'number' and string.format('%d', whole(word)) or type(word) == 'string' and word or ''
    found[i] = string.gsub(word, '%c', ' ')
  end
  return table.concat(found, '\n')
end
-- Some values are needed only for few of hundreds of leases, and are computed on access: `lease`,
-- the stored values by name; `token`, its digits, since Lua's numbers hold only 53 of 64 bits;
-- `repository`, '' if it is unknown; and `text`, the lease as in a reply.
local later = {}
function later.__index(one, name)
  local found
  if name == 'lease' then
    local values = decode(one.json)
    found = type(values) == 'table' and values or {}
  elseif name == 'token' then
    found = string.match(one.json, '"token"%s*:%s*(%d+)') or '0'
  elseif name == 'repository' then
    found = string.match(one.json, '"repository"%s*:%s*"([^"]*)"') or ''
  elseif name == 'text' then
    local values = one.lease
    found = lines(one.path, one.agent, values['why'], one.ends, values['since'], one.token,
      values['auto'] == true and '1' or '', one.sub, values['process'], one.repository)
  end
  rawset(one, name, found)
  return found
end
-- leases(key, now): returns the leases in force, each with its field, path, agent, subagent, JSON,
-- end and computed values; and the fields of leases that have ended or are malformed.
local function leases(key, now)
  local flat, found, over, count = redis.call('HGETALL', key), {}, {}, 0
  for i = 1, #flat, 2 do
    local field, json = flat[i], flat[i + 1]
    local path, agent, sub = holder(field)
    local ends = string.match(json, '"until"%s*:%s*(%d+)')
    if path and ends and tonumber(ends) > now then
      count = count + 1
      found[count] = setmetatable({ field = field, path = path, agent = agent, sub = sub, json = json,
        ends = whole(tonumber(ends)), head = head(path) }, later)
    else
      over[#over + 1] = field
    end
  end
  return found, over
end
-- agrees(one, agent, sub): returns whether a lease conflicts with none of this agent's subagent
-- ('' for the agent itself): the agent works with each of its subagents, which exclude each other.
local function agrees(one, agent, sub)
  return one.agent == agent and (one.sub == sub or one.sub == '' or sub == '')
end
-- overlapping(found, paths, agent, sub, own): returns pairs of a path's number and an overlapping
-- lease, among those that agree with this agent's subagent if `own`, else among the others.
local function overlapping(found, paths, agent, sub, own)
  local met = {}
  for n, path in ipairs(paths) do
    local wanted = { path = path, head = head(path) }
    for _, one in ipairs(found) do
      if agrees(one, agent, sub) == own and overlap(wanted, one) and together(one) then met[#met + 1] = { n, one } end
    end
  end
  return met
end
-- lease_field(found, path, agent, sub): returns the field for a lease in the caller's repository: it
-- ends with the repository if the agent has a lease of this path in another one.
local function lease_field(found, path, agent, sub)
  local field = path .. '\n' .. agent .. (sub ~= '' and '\n' .. sub or '')
  for _, one in ipairs(found) do
    if one.field == field and not together(one) then return table.concat({ path, agent, sub, here }, '\n') end
  end
  return field
end
-- delete(key, fields): deletes any number of fields of a hash.
local function delete(key, fields)
  for i = 1, #fields, 1000 do
    redis.call('HDEL', key, unpack(fields, i, math.min(#fields, i + 999)))
  end
end
-- ring(bell): wakes agents that wait for leases to end. A key of another type, stored by another
-- program, is deleted.
local function ring(bell)
  local id = redis.pcall('XADD', bell, 'MAXLEN', 1, '*', 'ended', 1)
  if type(id) == 'table' then redis.call('DEL', bell) end
end
