-- pattern(text): a pattern of paths, split for `overlap`: its segments, and its text up to the first wildcard.
-- overlap(a, b): whether some path matches both. In a pattern `**` is any number of segments, none too; within a
-- segment `*` is any number of characters and `?` is one.
local split, answers, steps = {}, {}, 0
-- More comparisons than any patterns of files need, of about 50 ns each. Beyond, patterns count as overlapping, so that
-- no patterns keep the server busy for long.
local MOST_STEPS = 10000000
local function characters(segment)
  local found = split[segment]
  if not found then
    found = {}
    -- Of UTF-8, so that `?` is a character and not a byte.
    for one in string.gmatch(segment, '[\1-\127\194-\244][\128-\191]*') do found[#found + 1] = one end
    split[segment] = found
  end
  return found
end
-- meets(a, b, any, fits): whether some sequence matches both lists, in which `any` matches any number of elements.
-- The states of the product of two automata are pairs of places; `row` has those reached at one place of `a`.
local function meets(a, b, any, fits)
  steps = steps + (#a + 1) * (#b + 1)
  if steps > MOST_STEPS then return true end
  local row = { true }
  for i = 1, #a do
    local below, reached, x = {}, false, a[i]
    for j = 1, #b + 1 do
      if row[j] then
        local y = b[j]
        if y == any then row[j + 1] = true end
        if x == any and y then row[j + 1] = true end
        if x == any or y == any then
          below[j], reached = true, true
        elseif y and fits(x, y) then
          below[j + 1], reached = true, true
        end
      end
    end
    if not reached then return false end
    row = below
  end
  for j = 1, #b do
    if row[j] and b[j] == any then row[j + 1] = true end
  end
  return row[#b + 1] == true
end
local function same(x, y)
  return x == y or x == '?' or y == '?'
end
local function segments(x, y)
  if x == y or x == '*' or y == '*' then return true end
  if not string.find(x, '[*?]') and not string.find(y, '[*?]') then return false end
  local pair = x .. '/' .. y
  if answers[pair] == nil then answers[pair] = meets(characters(x), characters(y), '*', same) end
  return answers[pair]
end
local function pattern(text)
  local found = { head = string.match(text, '^[^*?]*') }
  for segment in string.gmatch(text, '[^/]+') do found[#found + 1] = segment end
  return found
end
local function overlap(a, b)
  local length = math.min(#a.head, #b.head)
  -- What begins differently shares no path.
  if string.sub(a.head, 1, length) ~= string.sub(b.head, 1, length) then return false end
  return meets(a, b, '**', segments)
end
