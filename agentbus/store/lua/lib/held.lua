-- held(stream, group, consumer, from, to): returns the set of ids from `from` to `to` that this
-- consumer holds. It may hold further ids.
local function held(stream, group, consumer, from, to)
  local found = {}
  repeat
    local page = redis.call('XPENDING', stream, group, from, to, 1000, consumer)
    for _, entry in ipairs(page) do found[entry[1]] = true end
    if #page > 0 then from = '(' .. page[#page][1] end
  until #page < 1000
  return found
end
