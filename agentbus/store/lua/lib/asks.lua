-- Asks older than a week, for which read messages are kept at least, are not mentioned.
local ASKED_FOR, MOST_ASKS = 604800000, 100
-- asks_to_answer(inbox, answers, now): examines the newest messages of an inbox. Returns for each
-- ask without an answer, newest first, its id and the sender.
local function asks_to_answer(inbox, answers, now)
  local open, examined, bytes, at = {}, 0, 0, '+'
  repeat
    local page = redis.pcall('XREVRANGE', inbox, at, string.format('%d', now - ASKED_FOR), 'COUNT', 20)
    if page['err'] then break end
    for _, entry in ipairs(page) do
      at, examined = '(' .. entry[1], examined + 1
      local by, ask = '', false
      for i = 1, #entry[2] - 1, 2 do
        bytes = bytes + #entry[2][i + 1]
        if entry[2][i] == 'agent_id' then by = entry[2][i + 1] end
        if entry[2][i] == 'ask' then ask = entry[2][i + 1] == '1' end
      end
      if ask and by ~= '' and type(redis.pcall('HGET', answers, entry[1])) ~= 'string' then
        open[#open + 1], open[#open + 2] = entry[1], by
      end
    end
  until #page < 20 or examined >= 200 or bytes >= 1048576
  return open
end
-- asks_without_answer(asks, now): returns the ids of the agent's own asks without an answer, newest
-- first.
local function asks_without_answer(asks, now)
  local open = redis.pcall('ZRANGE', asks, '+inf', string.format('%d', now - ASKED_FOR), 'BYSCORE', 'REV', 'LIMIT', 0, MOST_ASKS)
  return open['err'] and {} or open
end
