-- Asks and urgent messages must be answered before an agent stops; other messages can wait.
local function pressing(named)
  return named['ask'] == '1' or named['urgent'] == '1'
end
-- named(flat): returns the fields of an entry.
local function named(flat)
  local found = {}
  for i = 1, #flat - 1, 2 do found[flat[i]] = flat[i + 1] end
  return found
end
local THANKS = {}
for word in string.gmatch('thanks thankyou thx ty ok okay great perfect gotit noted done yw welcome youarewelcome', '%a+') do
  THANKS[word] = true
end
-- is_thanks(entry): returns whether an entry replies to a reply and only gives thanks; it rings no
-- bell.
local function is_thanks(entry)
  if not entry['reply_to'] or pressing(entry) or entry['thread'] == entry['reply_to'] then return false end
  local text = entry['message'] or ''
  if #text > 60 then return false end
  text = string.gsub(string.lower(text), '[^%a]', '')
  local left = string.gsub(string.gsub(text, 'thankyou', ''), 'thanks', '')
  return text ~= '' and (left == '' or THANKS[left] == true)
end
-- waiting(inbox, at, from, limit, counts): examines up to `limit` unread messages after the id
-- `from` for which counts(entry) is true. Returns {number of others, pressing ones (agent and ms of
-- each of the newest 20), id of the last message, id of the last pressing one}; nil if there are
-- none.
local function waiting(inbox, at, from, limit, counts)
  local found = { others = 0, asks = 0, urgent = 0, who = {}, last = nil, pressing = nil }
  local seen = 0
  repeat
    local page = redis.pcall('XRANGE', inbox, '(' .. from, '+', 'COUNT', 20)
    if page['err'] then return nil end
    for _, entry in ipairs(page) do
      from, seen = entry[1], seen + 1
      if type(redis.pcall('HGET', at, from)) ~= 'string' then
        local fields = named(entry[2])
        if counts(fields) then
          found.last = from
          if pressing(fields) then
            found.pressing = from
            local kind = fields['ask'] == '1' and 'asks' or 'urgent'
            found[kind] = found[kind] + 1
            table.insert(found.who, fields['agent_id'] or '')
            table.insert(found.who, string.match(from, '^%d+'))
            if #found.who > 40 then
              table.remove(found.who, 1)
              table.remove(found.who, 1)
            end
          else
            found.others = found.others + 1
          end
        end
      end
    end
  until #page < 20 or seen >= limit
  return found.last and found
end
-- later(a, b): returns the newer of two ids, each of which may be missing or invalid.
local function later(a, b)
  a = type(a) == 'string' and is_id(a) and a or '0-0'
  b = type(b) == 'string' and is_id(b) and b or '0-0'
  return newer(a, b) and a or b
end
