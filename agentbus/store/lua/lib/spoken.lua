-- In what was spoken, notices of the bus itself, which have an event, do not count.
local MOST_SPOKEN, MOST_EXAMINED, MOST_BYTES, MOST_PAIRS = 99, 1000, 1048576, 20
-- rings(topics, topic): returns whether a topic rings for an agent. `topics` is a list of those
-- that it follows, or of muted ones, each after a minus; `*` stands for all, '' mutes none.
local function rings(topics, topic)
  local follows, chosen, muted = false, false, false
  for word in string.gmatch(topics, '[^,]+') do
    word = string.match(word, '^%s*(.-)%s*$')
    local quiet = string.sub(word, 1, 1) == '-'
    if quiet then word = string.match(word, '^-%s*(.*)$') else follows = true end
    if word == '*' or (word == topic and word ~= '') then
      if quiet then muted = true else chosen = true end
    end
  end
  return not muted and (chosen or not follows)
end
-- spoken(channel, from, cursors, field, agent, topics): examines the newest messages after the id
-- `from`, not the agent's own. Those on a topic that the agent has read, by the record of its cursor
-- in the hash `cursors`, do not count. Returns {how many, 1 if there may be more, then of the newest
-- {topic, agent, how many}}, nil for none; and the id of the channel's last message, if it is after
-- `from`.
local function spoken(channel, from, cursors, field, agent, topics)
  local count, more, examined, bytes, last, at = 0, 0, 0, 0, nil, '+'
  local pairs_of, lists, after = {}, {}, {}
  local function is_read(topic, id)
    if topic == '' then return false end
    if after[topic] == nil then
      local escaped = string.gsub(topic, '[%%:]', { ['%'] = '%25', [':'] = '%3A' })
      local record = redis.pcall('HGET', cursors, string.format('%s:%s', field, escaped))
      local read = string.match(type(record) == 'string' and record or '', '^(%S+) %d+$')
      after[topic] = read and is_id(read) and read or '0-0'
    end
    return not newer(id, after[topic])
  end
  repeat
    local page = redis.pcall('XREVRANGE', channel, at, '(' .. from, 'COUNT', 20)
    if page['err'] then break end
    for _, entry in ipairs(page) do
      last, at, examined = last or entry[1], '(' .. entry[1], examined + 1
      local topic, by, event = '', '', false
      for i = 1, #entry[2] - 1, 2 do
        local name, value = entry[2][i], entry[2][i + 1]
        bytes = bytes + #value
        if name == 'topic' then topic = value elseif name == 'agent_id' then by = value
        elseif name == 'event' then event = true end
      end
      if not event and by ~= agent and rings(topics, topic) and not is_read(topic, entry[1]) then
        if count == MOST_SPOKEN then
          more = 1
          break
        end
        count = count + 1
        local key = topic .. '\n' .. by
        if not pairs_of[key] and #lists < MOST_PAIRS then
          pairs_of[key] = { topic, by, 0 }
          lists[#lists + 1] = pairs_of[key]
        end
        if pairs_of[key] then pairs_of[key][3] = pairs_of[key][3] + 1 end
      end
    end
    if #page == 20 and (examined >= MOST_EXAMINED or bytes >= MOST_BYTES) then more = 1 end
  until #page < 20 or more == 1
  return count > 0 and { count, more, unpack(lists) } or nil, last
end
-- unheard_from(cursor, now): returns the id after which an agent has heard nothing: that of its
-- cursor, or for an agent without one that of a day ago.
local function unheard_from(cursor, now)
  local at = redis.pcall('GET', cursor)
  if type(at) == 'string' and string.find(at, '^%d+$') then at = at .. '-0' end
  if type(at) == 'string' and is_id(at) then return at end
  return string.format('%d-0', now - 86400000)
end
