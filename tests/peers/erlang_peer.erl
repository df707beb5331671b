%% Erlang/OTP: a gen_server on another node of the same machine, called from this node.
%%
%% Compiled by erlc and started as `erl -sname ... -s erlang_peer main SECONDS WORK...`; prints one
%% line of JSON for each figure, as the scripts for the other libraries do.
-module(erlang_peer).
-behaviour(gen_server).
-export([main/1, init/1, handle_call/3, handle_cast/2, start/0, start_many/1]).

init(_) -> {ok, none}.

handle_call(read, _From, State) -> {reply, 16, State};
handle_call({echo, Data}, _From, State) -> {reply, Data, State};
handle_call(fail, _From, State) -> {reply, {error, as_asked}, State};
handle_call(pid, _From, State) -> {reply, list_to_integer(os:getpid()), State};
handle_call(wait, _From, State) -> {noreply, State}.

handle_cast(_, State) -> {noreply, State}.

start() ->
    {ok, Server} = gen_server:start(?MODULE, [], []),
    Server.

%% Actors on the node that runs this, in one request, as spawn_many does.
start_many(Count) -> [start() || _ <- lists:seq(1, Count)].

main([Seconds | Asked]) ->
    Time = list_to_float(atom_to_list(Seconds)),
    {ok, _Peer, Node} = peer:start(#{
        name => peer:random_name(), args => ["-pa", filename:dirname(code:which(?MODULE))]
    }),
    Server = rpc:call(Node, ?MODULE, start, []),
    Works = [
        {'sequential', fun() -> rate(fun() -> gen_server:call(Server, read) end, Time) end},
        {'pipelined', fun() -> crowd(fun() -> gen_server:call(Server, read) end, Time, 1000) end},
        {'echo-1k', fun() -> echoes(Server, 1024, Time) end},
        {'echo-64k', fun() -> 2 * echoes(Server, 65536, Time) * 65536 / 1048576 end},
        {'echo-array', fun() -> 2 * echoes(Server, 8388608, Time) * 8 end},
        {'raise', fun() -> crowd(fun() -> gen_server:call(Server, fail) end, Time, 200) end},
        {'first', fun() -> first(Node, 50) end},
        {'actors', fun() -> actors(Node, 1000) end},
        {'kill', fun() -> kill(Server) end}
    ],
    [report(Work, Measure()) || {Work, Measure} <- Works, Asked =:= [] orelse lists:member(Work, Asked)],
    halt(0).

report(Work, Figure) -> io:format("{\"work\": \"~s\", \"figure\": ~f}~n", [Work, float(Figure)]).

now_seconds() -> erlang:monotonic_time(microsecond) / 1.0e6.

rate(Call, Time) ->
    repeat(Call, Time / 10, now_seconds(), 0),
    repeat(Call, Time, now_seconds(), 0).

repeat(Call, Time, Began, Count) ->
    Took = now_seconds() - Began,
    if
        Took >= Time, Count > 0 -> Count / Took;
        true ->
            [Call() || _ <- lists:seq(1, 10)],
            repeat(Call, Time, Began, Count + 10)
    end.

echoes(Server, Size, Time) ->
    Data = binary:copy(<<1>>, Size),
    rate(fun() -> gen_server:call(Server, {echo, Data}, infinity) end, Time).

crowd(Call, Time, Callers) ->
    Self = self(),
    Began = now_seconds(),
    [spawn_link(fun() -> Self ! {done, caller(Call, Began, Time, 0)} end) || _ <- lists:seq(1, Callers)],
    Counts = [receive {done, Count} -> Count end || _ <- lists:seq(1, Callers)],
    lists:sum(Counts) / (now_seconds() - Began).

caller(Call, Began, Time, Count) ->
    case now_seconds() - Began >= Time of
        true -> Count;
        false ->
            Call(),
            caller(Call, Began, Time, Count + 1)
    end.

first(Node, Count) ->
    Took = [
        begin
            Began = now_seconds(),
            16 = gen_server:call(rpc:call(Node, ?MODULE, start, []), read),
            1000 * (now_seconds() - Began)
        end
     || _ <- lists:seq(1, Count)
    ],
    lists:nth(Count div 2, lists:sort(Took)).

actors(Node, Count) ->
    Began = now_seconds(),
    Made = rpc:call(Node, ?MODULE, start_many, [Count]),
    16 = gen_server:call(lists:last(Made), read),
    Count / (now_seconds() - Began).

kill(Server) ->
    Pid = gen_server:call(Server, pid),
    Self = self(),
    spawn(fun() ->
        timer:sleep(300),
        Self ! {killed, now_seconds()},
        os:cmd("kill -9 " ++ integer_to_list(Pid))
    end),
    try gen_server:call(Server, wait, 20000) of
        _ -> 0.0
    catch
        exit:_ ->
            receive
                {killed, Began} -> 1000 * (now_seconds() - Began)
            end
    end.
