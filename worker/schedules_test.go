package worker_test

import (
	"testing"
)

// A statement of Postgres that is cancelled, as after its time limit, cannot be caught within it.
func TestAScheduleThatCannotRunHoldsUpNeitherOthersNorTimers(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.send"})
	exec := func(sql string) {
		t.Helper()
		if _, err := env.DB.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`create function public.stuck() returns trigger language plpgsql as $$ begin
			raise exception 'too slow' using errcode = 'query_canceled'; end $$;
		create trigger stuck before insert on core_tool_calls for each row when (new.session_id = 'stuck')
			execute function public.stuck();
		select gem.save_schedule('a-stuck', '@yearly', 'lab.send', p_options => '{"session_id": "stuck"}'),
			gem.save_schedule('b', '@yearly', 'lab.send', '{"text": "x"}');
		update gem.schedules set next_at = now(), look_at = now()`)
	env.StartWorker()
	env.Until("the other schedule to make its call", func() bool {
		return number(t, env, "select count(*) from gem.occurrences where call_id is not null") == 1
	})
	env.Until("the stuck schedule to be put off", func() bool {
		return number(t, env, "select count(*) from gem.schedules where name = 'a-stuck' and look_at > now()") == 1
	})
	exec("drop trigger stuck on core_tool_calls; update gem.schedules set look_at = now() where name = 'a-stuck'")
	env.Until("it to run", func() bool { return number(t, env, "select count(*) from gem.occurrences") == 2 })
}
