#!/usr/bin/env escript
-module(counter).
-mode(compile).
-behaviour(gen_server).
-export([main/1, start_link/0, init/1, handle_call/3, handle_cast/2]).

start_link() -> gen_server:start_link({local, counter}, ?MODULE, counter, []).

init(counter) -> {ok, 0};
init(supervisor) ->
    Child = #{id => counter, start => {?MODULE, start_link, []}},
    {ok, {#{strategy => one_for_one, intensity => 3, period => 5}, [Child]}}.

handle_call({add, Amount}, _From, Value) -> {reply, Value + Amount, Value + Amount};
handle_call(fail, _From, _Value) -> error(no_more).

handle_cast(_, Value) -> {noreply, Value}.

main(_) ->
    logger:set_primary_config(level, none),
    {ok, _} = supervisor:start_link(?MODULE, supervisor),
    io:format("~p~n", [gen_server:call(counter, {add, 5})]),
    catch gen_server:call(counter, fail),
    timer:sleep(100),
    io:format("~p~n", [gen_server:call(counter, {add, 1})]),
    try
        gen_server:call(nobody, {add, 1})
    catch
        exit:{noproc, _} -> io:format("no such actor~n")
    end.
