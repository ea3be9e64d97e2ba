#!lua
-- Takes leases on path patterns, or renews those of this agent.
-- It takes all, or none if a lease of another agent, or of another subagent of this agent, overlaps one. Also deletes expired leases, and
-- marks the agent as seen, so that others can send it messages.
-- KEYS: leases, fence, bell, metrics, counts of refusals, agents, once slot
-- ARGV: agent, ms that they last, 1 to take them from others, why ('' for none), 1 if a hook takes them, the agent's
--       subagent ('' for none), 1 to count a refusal, most leases of a project, token, process of the
--       client that holds them ('' for none), the repository ('' for none), then for each: pattern, and the fencing token of the lease that is renewed ('' to take it, too)
-- Returns: {'taken', how many were taken from others, their lines, then for each 'new' or 'renewed' and its lines};
--          {'held', bell's last id, ms until the last of them has ended, how many, then for the first 20: number of the
--          pattern, and lines}; {'over', number of the pattern} if the lease with that token has ended;
--          or {'full', number of leases}
--@include json
--@include once
--@include ids
--@include fence
--@include stream
--@include count_refused
--@include say
--@include overlap
--@include holder
--@include leases
local before = already(KEYS[7], ARGV[9])
if before then return before end
stored_token(KEYS[2])
local now, agent, sub = clock(), ARGV[1], ARGV[6]
local paths, tokens = {}, {}
here = ARGV[11]
local renewed = {}
for i = 12, #ARGV, 2 do
  paths[#paths + 1], tokens[#tokens + 1] = ARGV[i], ARGV[i + 1]
  renewed[ARGV[i]] = ARGV[i + 1]
end
local found, over = leases(KEYS[1], now)
local mine, own = {}, {}
for _, one in ipairs(found) do
  if one.agent == agent and one.sub == sub then own[#own + 1] = one end
end
for _, one in ipairs(own) do
  -- The caller may have changed to another repository since.
  if renewed[one.path] == one.token then here = one.repository end
end
for _, one in ipairs(own) do
  if together(one) and not (mine[one.path] and mine[one.path].repository == here) then mine[one.path] = one end
end
for n, path in ipairs(paths) do
  if tokens[n] ~= '' and not (mine[path] and mine[path].token == tokens[n]) then return { 'over', n } end
end
local conflicts = overlapping(found, paths, agent, sub, false)
if #conflicts > 0 and ARGV[3] ~= '1' then
  if ARGV[7] == '1' then count_refused(KEYS[4], KEYS[5], 100000, '~leases', 1) end
  local there, bell = pcall(stream, KEYS[3])
  if not there then redis.call('DEL', KEYS[3]) end
  local last, reply = 0, { 'held', there and bell['last-generated-id'] or '0-0', '', #conflicts }
  for at, each in ipairs(conflicts) do
    last = math.max(last, each[2].ends)
    if at <= 20 then
      reply[#reply + 1] = each[1]
      reply[#reply + 1] = each[2].text
    end
  end
  reply[3] = string.format('%d', last - now)
  return reply
end
local gone, taken = {}, {}
for _, each in ipairs(conflicts) do
  if not gone[each[2].field] then
    gone[each[2].field] = true
    taken[#taken + 1] = each[2]
  end
end
local fresh = 0
for _, path in ipairs(paths) do
  if not mine[path] then fresh = fresh + 1 end
end
if #found - #taken + fresh > tonumber(ARGV[8]) then return { 'full', #found } end
report_refused(KEYS[4], KEYS[5], 100000, '~leases', 1000)
local woken = #taken > 0
for _, one in ipairs(taken) do over[#over + 1] = one.field end
delete(KEYS[1], over)
local function json(value)
  return type(value) == 'string' and value ~= '' and cjson.encode(value) or 'null'
end
-- next_token(ms): returns a token for a lease of `ms`; the counter expires no earlier than an
-- earlier lease requires.
local kept_for = redis.call('PTTL', KEYS[2])
local function next_token(ms)
  local token = fence(KEYS[2], string.format('%d', ms))
  if kept_for > redis.call('PTTL', KEYS[2]) then redis.call('PEXPIRE', KEYS[2], kept_for) end
  return token
end
local reply = { 'taken', #taken }
for _, one in ipairs(taken) do reply[#reply + 1] = one.text end
for n, path in ipairs(paths) do
  local old = mine[path] or { lease = {}, token = '0', ends = 0 }
  local values, renews = old.lease, old.token ~= '0'
  local ends, why = now + tonumber(ARGV[2]), values['why']
  -- A lease that is renewed by its token remains manual or automatic, as it was.
  local auto = values['auto'] == true and (ARGV[5] == '1' or tokens[n] ~= '') or ARGV[5] == '1' and not renews
  -- A hook neither shortens nor replaces a lease that the agent itself has taken.
  if renews and ARGV[5] == '1' then ends = math.max(ends, old.ends) end
  if renews and ends < old.ends then woken = true end
  local since = renews and type(values['since']) == 'number' and whole(values['since']) or now
  if ARGV[4] ~= '' then why = ARGV[4] end
  local token = renews and old.token or next_token(ends - now)
  if renews then
    local needed = tonumber(token_ttl(string.format('%d', ends - now)))
    if redis.call('PTTL', KEYS[2]) < needed then redis.call('PEXPIRE', KEYS[2], needed) end
  end
  local repository = here ~= '' and here or renews and old.repository or ''
  redis.call('HSET', KEYS[1], renews and old.field or lease_field(found, path, agent, sub), string.format(
    '{"agent":%s,"pattern":%s,"why":%s,"until":%d,"since":%d,"token":%s,"auto":%s,"sub":%s%s%s}',
    json(agent), json(path), json(why), ends, since, token, tostring(auto), json(sub),
    ARGV[10] ~= '' and string.format(',"process":%s', json(ARGV[10])) or '',
    repository ~= '' and string.format(',"repository":%s', json(repository)) or ''))
  reply[#reply + 1] = renews and 'renewed' or 'new'
  reply[#reply + 1] = lines(path, agent, why, ends, since, token, auto and '1' or '', sub, ARGV[10], repository)
end
touch(KEYS[6], agent, tostring(now / 1000))
if woken then ring(KEYS[3]) end
return keep(KEYS[7], ARGV[9], reply)
