create table public.orders (
  id       bigint  primary key,
  total    numeric not null,
  refunded numeric not null default 0
);
alter table public.orders enable row level security;
insert into public.orders (id, total) values (1, 40), (2, 250), (3, 300);
insert into public.orders (id, total) select id, 100 from generate_series(11, 40) id;
