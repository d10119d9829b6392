-- Written by vllm-spark; the same text on every Spark. haproxy.cfg loads it, for the log of the edge: how many tokens an
-- answer says that it has (`usage`), and how many events a stream has. Answers pass at once and unchanged. Only the end
-- of an answer is kept, and no text of it reaches the log.

-- `usage` stands behind the text of an answer, and in one of the last events of a stream.
local KEPT_BYTES = 4096
-- The objects around `usage`. Streams of /v1/responses have `response` around it.
local AROUND, AROUND_IN_EVENT = 1, 2
-- Variable of the log -> its names in `usage`, which are added: those of the cache stand beside `input_tokens` in
-- /v1/messages, and elsewhere a number includes them.
local FIGURES = {
  ["txn.in_tokens"] = { "input_tokens", "prompt_tokens", "cache_read_input_tokens", "cache_creation_input_tokens" },
  ["txn.out_tokens"] = { "output_tokens", "completion_tokens" },
}

-- The first event of /v1/messages, reversed: its `usage` has no token of the answer yet.
local START = '"trats_egassem"%s*:%s*"epyt"'

-- Return what is in `usage`, nil without it. `text` is the end of a JSON text, reversed: nothing is open at that end, so
-- from there it is certain which quotes and braces are structure. A model or a client has written what is in strings.
local function usage_of(text, around)
  local depth, in_string, ends, from = 0, false, {}, 1
  while true do
    local at = text:find(in_string and '"' or '["{}%[%]]', from)
    if not at then return nil end
    local mark = text:sub(at, at)
    from = at + 1
    if mark == '"' then
      -- A quote behind an odd number of backslashes is a part of its string.
      local slashes = #text:match("^\\*", from)
      from = from + slashes
      if slashes % 2 == 0 then in_string = not in_string end
    elseif mark == "}" or mark == "]" then
      depth = depth + 1
      ends[depth] = from
    else
      depth = depth - 1
      if depth < 0 then return nil end
      if mark == "{" and depth >= 1 and depth <= around and text:find('^%s*:%s*"egasu"%s*[,{]', from) then
        return (text:sub(ends[depth + 1], at - 1):reverse():gsub("%b{}", ""))
      end
    end
  end
end

-- Return what is in the last `usage` of a stream. `text` is its end, reversed.
local function usage_of_events(text)
  -- The last event may be cut.
  local ended = text:find("\n", 1, true)
  for line in text:sub(ended or #text + 1):gmatch("[^\n]+") do
    local usage = usage_of(line, AROUND_IN_EVENT)
    if usage and not line:find(START) then return usage end
  end
end

local Tokens = { id = "edge-tokens", flags = filter.FLT_CFG_FL_HTX }
Tokens.__index = Tokens

function Tokens:new()
  return setmetatable({ kept = "", events = 0, streams = false, complete = false }, self)
end

local function begin(self, message)
  local headers = message:get_headers()
  -- A compressed answer says nothing here.
  if not message:is_resp() or headers["content-encoding"] then return end
  local kind = headers["content-type"]
  self.streams = kind ~= nil and kind[0]:find("^text/event%-stream") ~= nil
  filter.register_data_filter(self, message.channel)
end

local function keep(self, message)
  local length = message:input()
  for offset = self.streams and 0 or math.max(0, length - KEPT_BYTES), length - 1, KEPT_BYTES do
    local part = message:body(offset, KEPT_BYTES)
    if self.streams then
      for _ in (self.kept:sub(-1) .. part):gmatch("\n\n") do self.events = self.events + 1 end
    end
    self.kept = (self.kept .. part):sub(-KEPT_BYTES)
  end
end

local function say(self, transaction)
  local usage
  local text = self.kept:reverse()
  if self.streams then
    transaction:set_var("txn.events", self.events)
    usage = usage_of_events(text)
  elseif self.complete then
    usage = usage_of(text, AROUND)
  end
  for variable, names in pairs(usage and FIGURES or {}) do
    local sum
    for _, name in ipairs(names) do
      local figure = usage:match('"' .. name .. '"%s*:%s*(%d+)')
      if figure then sum = (sum or 0) + tonumber(figure) end
    end
    if sum then transaction:set_var(variable, sum) end
  end
end

-- HAProxy cuts an answer whose filter fails. A figure that is missing is only a dash in the log.
function Tokens:http_headers(_, message)
  pcall(begin, self, message)
end

function Tokens:http_payload(_, message)
  pcall(keep, self, message)
end

function Tokens:http_end(_, message)
  self.complete = self.complete or message:is_resp()
end

-- Also after an answer that was cut, or whose client has gone.
function Tokens:end_analyze(transaction, channel)
  if channel:is_resp() then pcall(say, self, transaction) end
end

core.register_filter("tokens", Tokens, function(class) return class end)
