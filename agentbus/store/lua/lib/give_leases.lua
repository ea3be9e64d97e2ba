-- leases_to_give(key, now, agent, sub, paths): returns the leases of exactly these patterns that this
-- agent's subagent ('' for any) has, and the fields of leases that end with them, which hooks or other
-- subagents of the agent took on the same paths. Otherwise
-- returns nil, the number of the first pattern that cannot be given, and the lines of another
-- agent's lease of it ('' for none), or of an overlapping lease that this agent would keep.
local function leases_to_give(key, now, agent, sub, paths)
  if #paths == 0 then return {}, {} end
  local found, mine, going, ended = leases(key, now), {}, {}, {}
  for n, path in ipairs(paths) do
    local other = ''
    for _, one in ipairs(found) do
      if one.path == path and together(one) and owns(one, agent, sub) then
        mine[n] = mine[n] or one
        if one ~= mine[n] then ended[#ended + 1] = one.field end
        going[one.field] = true
      elseif one.path == path and together(one) then
        other = one.text
      end
    end
    if not mine[n] then return nil, n, other end
  end
  -- Two agents must not hold leases that overlap.
  for _, met in ipairs(overlapping(found, paths, agent, '', true)) do
    local n, one = unpack(met)
    if not going[one.field] then
      if one.lease['auto'] ~= true then return nil, n, one.text end
      going[one.field] = true
      ended[#ended + 1] = one.field
    end
  end
  mine.found = found
  return mine, ended
end
-- give_leases(key, fences, bell, now, to, mine): moves leases to another agent, each with a new
-- token, and wakes waiting agents.
local function give_leases(key, fences, bell, now, to, mine)
  for _, one in ipairs(mine) do
    redis.call('HDEL', key, one.field)
    local ends = one.ends
    local before = redis.call('PTTL', fences)
    local token = fence(fences, string.format('%d', ends - now))
    if before > redis.call('PTTL', fences) then redis.call('PEXPIRE', fences, before) end
    local why = one.lease['why']
    here = one.repository
    redis.call('HSET', key, lease_field(mine.found, one.path, to, ''), string.format(
      '{"agent":%s,"pattern":%s,"why":%s,"until":%d,"since":%d,"token":%s,"auto":false,"sub":null%s}', cjson.encode(to),
      cjson.encode(one.path), type(why) == 'string' and cjson.encode(why) or 'null', ends, now, token,
      here ~= '' and string.format(',"repository":%s', cjson.encode(here)) or ''))
  end
  if #mine > 0 then ring(bell) end
end
