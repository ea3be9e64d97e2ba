-- head(path): returns the text of a path pattern up to its first wildcard.
-- overlap(a, b): returns whether any path matches both patterns, each with its `path` and `head`.
-- In a pattern, `**` matches any number of segments, including none; within a segment, `*` matches
-- any number of characters and `?` one.
local split, answers, steps = {}, {}, 0
-- Patterns of files need fewer comparisons, each of about 0.1 us. Beyond this limit, patterns count
-- as overlapping, so that none can keep the server busy for long.
local MOST_STEPS = 2000000
local function characters(segment)
  local found = split[segment]
  if not found then
    found = {}
    -- Split into UTF-8 characters, so that `?` matches a character, not a byte.
    for one in string.gmatch(segment, '[\1-\127\194-\244][\128-\191]*') do found[#found + 1] = one end
    found.any = string.find(segment, '*', 1, true)
    split[segment] = found
  end
  return found
end
-- outside(a, b, any, fits): returns whether the elements before the first `any`, and after the last
-- one, fit.
local function outside(a, b, any, fits)
  for side = 0, 1 do
    for i = 1, math.min(#a, #b) do
      local x, y = a[side == 0 and i or #a + 1 - i], b[side == 0 and i or #b + 1 - i]
      if x == any or y == any then break end
      if not fits(x, y) then return false end
    end
  end
  return true
end
-- meets(a, b, any, fits): returns whether some sequence matches both lists, in which `any` matches
-- any number of elements and sets the list's field `any`. The states of the product automaton are
-- pairs of places; `row` has those reached at one place of `a`.
local function meets(a, b, any, fits)
  if not outside(a, b, any, fits) then return false end
  -- If both lists contain `any`, each can absorb the rest of the other.
  if a.any and b.any then return true end
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
local function head(path)
  return string.match(path, '^[^*?]*')
end
local function split_path(one)
  if not one.split then
    one.split = { any = string.find('/' .. one.path .. '/', '/**/', 1, true) }
    for segment in string.gmatch(one.path, '[^/]+') do one.split[#one.split + 1] = segment end
  end
  return one.split
end
local function overlap(a, b)
  local length = math.min(#a.head, #b.head)
  -- Patterns that begin differently share no path.
  if string.sub(a.head, 1, length) ~= string.sub(b.head, 1, length) then return false end
  return meets(split_path(a), split_path(b), '**', segments)
end
